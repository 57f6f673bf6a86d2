"""How questions, errors and instructions are worded, with gaps for what they are about."""

LOOKUP_FORMS = (
    "What is the {topic} of {thing}?",
    "What is the {topic} of {thing}?",
    "Tell me the {topic} of {thing}.",
    "Find the {topic} of {thing}.",
    "I need the {topic} of {thing}.",
    "Please give me the {topic} for {thing}.",
    "Show me the {topic} of {thing}",
    "Could you look up the {topic} of {thing}?",
    "How about the {topic} of {thing}?",
    "Do you know the {topic} of {thing}?",
    "For {thing}, what is the {topic}?",
    "{thing}: what is the {topic}?",
)
SECOND_FORMS = (" with {name} {value}", ", {name} {value}", " when {name} is {value}")
PAIR_FORMS = (
    "What are {left} and {right}?",
    "Tell me {left} and {right}.",
    "I need both {left} and {right}.",
    "Please find {left} and {right}.",
)
FOLLOW_UP_FORMS = ("And of {thing}?", "And for {thing}?", "What about {thing}?")
ERRORS = ("timeout", "service unavailable", "rate limited", "internal error", "try again later")
INSTRUCTIONS = (
    "You are a helpful assistant.",
    "Answer with the tools.",
    "You are the assistant of {Word}. Be brief.",
    "You help the people of {Word} with {word} and {word2}.",
    "Today is day {number}. Use the tools you are given.",
    "You are {Word}, an agent for {word}. Never guess.",
)
