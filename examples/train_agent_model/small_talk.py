"""What people say first to a model that only looks things up, and what it says to that.

Whether an opener is held out depends on its letters alone, as with words: those of the evaluation
are never practised.
"""

import hashlib

ANSWER = "I look things up with tools. What do you need?"
"""To everything that asks for nothing a tool could find."""

_OPENERS = """
hello|hi|hey|hey there|hi there|hello there|hello again|good morning|good afternoon|good evening
good night|good day|greetings|howdy|yo|sup|welcome|hiya|morning|evening all|hello everyone
hello world|how are you|how are you?|how are you today?|how is it going?|how do you do?|what's up?
what is up|are you there?|are you awake?|is anybody there?|anyone here?|can you hear me?|ping|test
testing|this is a test|testing one two three|just testing|check|hello, can you help me?|help
help me|help me please|I need help|can you help?|can you help me?|please help|could you help me?
start|let's start|let us begin|begin|go|ready?|are you ready?|who are you|who are you?
what are you?|what is your name?|what's your name?|do you have a name?|who made you?
who built you?|are you a robot?|are you human?|are you real?|are you an AI?|what can you do?
what can you do for me?|what do you do?|what do you know?|how do you work?|how can you help me?
what are you good at?|what should I ask you?|tell me about yourself|introduce yourself
tell me a joke|tell me a story|sing a song|make me laugh|write a poem|write a poem about the sea
write a story|say something|say hello|say hi|talk to me|thanks|thank you|thanks a lot
thank you very much|many thanks|great, thanks|ok thanks|cheers|ok|okay|yes|no|maybe|sure|fine|good
great|nice|cool|wow|well done|perfect|awesome|alright|right|I see|hm|bye|goodbye|see you
see you later|see you tomorrow|take care|have a nice day|that is all|stop|quit|sorry|excuse me
pardon?|what?|why?|how?|really?|I am bored|I am back|I am new here|nice to meet you
good to see you|long time no see|how old are you?|where are you?|where do you live?
do you like music?|do you speak English?|do you sleep?|what time is it?|what day is it?
how is the weather?|is it raining?|explain yourself|be quiet|never mind|forget it|one moment|wait
continue|go on|again|once more|next|what is the meaning of life?|do you love me?|I love you
you are great|you are funny|that was good|how was your day?|happy birthday|merry christmas
happy new year|good luck|congratulations|let's talk|can we talk?|I have a question
may I ask something?|quick question|question|hello my friend|hi friend|hello robot|hey you
hello computer|hi assistant|dear assistant|hello sir|to whom it may concern
"""
OPENERS = tuple(dict.fromkeys(_OPENERS.replace("\n", "|").strip("|").split("|")))


def is_held_out(opener: str) -> bool:
    """Whether an opener is kept for evaluation: three in ten, however it is spelt."""
    letters = "".join(filter(str.isalpha, opener.lower()))
    return hashlib.sha256(letters.encode()).digest()[0] % 10 < 3


def openers(*, held_out: bool) -> tuple[str, ...]:
    """Those for evaluation, or those for practice."""
    return tuple(opener for opener in OPENERS if is_held_out(opener) == held_out)
