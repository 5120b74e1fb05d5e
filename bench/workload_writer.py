"""Writes the workloads shared_system, long_short and editing into bench/data.

`python bench/workload_writer.py`

Their text is Python's own help (`pydoc_data.topics`), like that of mixed48. The files in bench/data
were written with Python 3.11: another version words some topics differently, and figures of other
texts are not comparable. Token counts are SmolLM2's.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics

DATA = Path(__file__).parent / "data"
SYSTEM_WORDS = 432  # about 600 tokens
SYSTEM_TOPIC = "import"
QUESTION_TOPICS = (
    *("assert", "assignment", "async", "attribute-access", "await", "binary", "booleans", "break"),
    *("calls", "class", "comparisons", "context-managers", "continue", "debugger", "del", "dict"),
    *("else", "exceptions", "floating", "for", "function", "global", "if", "imaginary"),
    *("lambda", "lists", "nonlocal", "pass", "raise", "return", "while", "yield"),
)
QUESTION_TOKENS = 24  # of output
LONG_WORDS = {  # about 1,500 tokens each
    "typesseq": 920,
    "attribute-access": 980,
    "comparisons": 1050,
    "try": 990,
    "calls": 1060,
    "execmodel": 1170,
}
SHORT_WORDS = 22  # with the question around them about 40 tokens
LONG_SHORT_TOKENS = 32  # of output
EDITED_WORDS = 90  # of a text that is to be copied, about 130 tokens
EXAMPLE_WORDS = 40
EDITING_TOKENS = 128  # of output
LONG_PLACES = (3, 9, 15, 21, 27, 33)  # of 36 requests, in order of arrival


def words(topic: str, first: int, count: int) -> str:
    """`count` words of a topic from the place `first`, on one line; underlines are none."""
    found = [word for word in topics[topic].split() if any(map(str.isalnum, word))]
    return " ".join(found[first : first + count])


def shared_system() -> Iterator[dict]:
    """32 short questions behind one system prompt."""
    system = (
        "You answer questions about the Python language in one short sentence. Use this text where "
        f"it helps: {words(SYSTEM_TOPIC, 0, SYSTEM_WORDS)}"
    )
    for number, topic in enumerate(QUESTION_TOPICS):
        prompt = f"{system}\n\nQuestion: what is to be known about {topic}?\nAnswer:"
        yield row(f"q{number:02}", prompt, QUESTION_TOKENS)


def long_short() -> Iterator[dict]:
    """6 long prompts among 30 short ones, in the order in which they arrive."""
    longs, shorts = iter(LONG_WORDS.items()), iter(QUESTION_TOPICS)
    for place in range(len(LONG_PLACES) + 30):
        if place in LONG_PLACES:
            topic, count = next(longs)
            prompt = f"{words(topic, 0, count)}\n\nIn short:"
            yield row(f"long{place:02}", prompt, LONG_SHORT_TOKENS)
        else:
            topic = next(shorts)
            prompt = f"About {topic}: {words(topic, 1, SHORT_WORDS)}\nIn other words:"
            yield row(f"short{place:02}", prompt, LONG_SHORT_TOKENS)


def editing() -> Iterator[dict]:
    """8 texts to be written again, after an example of how: outputs repeat their prompts."""
    example = words("assert", 0, EXAMPLE_WORDS)
    for number, topic in enumerate(LONG_WORDS | dict.fromkeys(("import", "class"))):
        text = words(topic, 20, EDITED_WORDS)
        prompt = f"Text: {example}\nCopy: {example}\n\nText: {text}\nCopy:"
        yield row(f"edit{number}", prompt, EDITING_TOKENS)


def row(custom_id: str, prompt: str, max_tokens: int) -> dict:
    return {"custom_id": custom_id, "prompt": prompt, "max_tokens": max_tokens}


def main() -> None:
    for workload in (shared_system, long_short, editing):
        lines = [json.dumps(one) + "\n" for one in workload()]
        (DATA / f"{workload.__name__}.jsonl").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
