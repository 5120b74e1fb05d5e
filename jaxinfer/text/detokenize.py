"""HOST. Text of one request as its tokens come: pieces that can be shown at once, and stop strings.

The pieces join to exactly `Tokenizer.decode` of the pushed ids, cut where a stop string says. A
character is shown when its last byte is there; the last (longest stop − 1) characters are held back
while a stop string may still be completed by them. Every token costs a bounded amount of work,
however long the text. Knows nothing of sampling, stop token ids or the engine.
"""

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

from jaxinfer.errors import RequestError
from jaxinfer.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Delta:
    """What one token added.

    text: new text that may be shown; never part of a stop string, never half a character.
    stopped: a stop string is complete; push no more tokens.
    stop_reason: that stop string.
    """

    text: str = ""
    stopped: bool = False
    stop_reason: str | None = None


_NOTHING = Delta()


class IncrementalDetokenizer:
    """Turns one request's tokens into text.

    Args:
        tokenizer: whose ids come.
        prompt_ids: what the text continues; without any, the text stands alone, as in `decode`
            (a SentencePiece tokenizer then drops the space before its first word).
        stop_strings: the text ends before the first of them (or with it, see below). One that is
            the text of a special token stops at that token, shown or not.
        include_stop_str_in_output: the text ends with the stop string; nothing is held back.
        skip_special_tokens: special tokens have no text.

    `text` is what was shown so far, `stopped` and `stop_reason` as in the last Delta.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        stop_strings: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        stops = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings)
        if not all(isinstance(stop, str) and stop for stop in stops):
            raise RequestError(f"stop={stops!r}: must be non-empty strings; remove the others")
        self._token_bytes = tokenizer.token_bytes
        self._special_ids = tokenizer.special_ids
        self._token_text = tokenizer.token_text
        self._skip = skip_special_tokens
        self._separator = tokenizer.rule.separator.encode()
        self._starting = len(prompt_ids) == 0
        self._strips = tokenizer.rule.strips_first_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._stops = stops
        self._include = include_stop_str_in_output
        self._reach = max(map(len, stops), default=1) - 1  # characters before new text to look at
        self._tail = ""  # the last `reach` characters of the text, shown or not
        self._held = 0  # how many characters at the end of the tail were not shown
        self._shown: list[str] = []
        self.stopped = False
        self.stop_reason: str | None = None

    @property
    def text(self) -> str:
        """The text shown so far: all deltas joined."""
        if len(self._shown) > 1:
            self._shown = ["".join(self._shown)]
        return self._shown[0] if self._shown else ""

    def push(self, token_id: int, *, check_stop: bool = True) -> Delta:
        """Takes the next token of the output.

        Args:
            token_id: any id; one beyond the tokenizer's list has no text. A token that ends the
                request by its id is pushed only if its text is to be shown.
            check_stop: look for stop strings that end in this token; False for first min_tokens.
        """
        if self.stopped:
            return Delta("", True, self.stop_reason)
        special = token_id in self._special_ids
        new = "" if special and self._skip else self._decode(token_id)
        if not self._stops:
            return self._show(new) if new else _NOTHING
        if special and self._skip and check_stop:
            stop = self._token_text(token_id)
            if stop in self._stops:
                return self._stop_at_special(stop)
        if not new:
            return _NOTHING
        found = self._find_stop(self._tail + new, len(new)) if check_stop else None
        return self._hold_and_show(new) if found is None else self._stop_in(new, *found)

    def finish(self) -> Delta:
        """Shows what was held back; bytes of an unfinished character become a replacement mark."""
        if self.stopped:
            return Delta("", True, self.stop_reason)
        rest = self._utf8.decode(b"", True)
        held = self._tail[len(self._tail) - self._held :]
        self._held, self._tail = 0, ""
        return self._show(held + rest)

    def _decode(self, token_id: int) -> str:
        piece = self._token_bytes(token_id)
        if not piece:
            return ""
        if self._starting:
            self._starting = False
            if self._strips and piece.startswith(b" "):
                piece = piece[1:]
        elif self._separator:
            piece = self._separator + piece
        return self._utf8.decode(piece)

    def _show(self, text: str) -> Delta:
        if not text:
            return _NOTHING
        self._shown.append(text)
        return Delta(text)

    def _hold_and_show(self, new: str) -> Delta:
        text = self._tail + new
        unshown = self._held + len(new)
        hold = 0 if self._include else min(unshown, self._reach)
        shown = text[len(text) - unshown : len(text) - hold]
        self._tail = text[max(0, len(text) - self._reach) :]
        self._held = hold
        return self._show(shown)

    def _find_stop(self, text: str, num_new: int) -> tuple[int, int, str] | None:
        """The stop string that ends first in the new characters: start, end in `text`, itself."""
        best = None
        for stop in self._stops:
            start = text.find(stop, max(0, len(text) - num_new - len(stop) + 1))
            if start >= 0 and (best is None or (start + len(stop), start) < (best[1], best[0])):
                best = (start, start + len(stop), stop)
        return best

    def _stop_in(self, new: str, start: int, end: int, stop: str) -> Delta:
        text = self._tail + new
        first = len(text) - len(new) - self._held
        return self._stop(text[first : end if self._include else start], stop)

    def _stop_at_special(self, stop: str) -> Delta:
        held = self._tail[len(self._tail) - self._held :] + self._utf8.decode(b"", True)
        return self._stop(held + stop if self._include else held, stop)

    def _stop(self, text: str, stop: str) -> Delta:
        self.stopped, self.stop_reason = True, stop
        self._held, self._tail = 0, ""
        if text:
            self._shown.append(text)
        return Delta(text, True, stop)
