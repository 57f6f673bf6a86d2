"""What a client was promised, kept where a restart cannot take it. Nothing here runs in the event
loop but the handing over.
"""
