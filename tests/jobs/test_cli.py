"""Parsing, exit codes and messages of the command line."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from jaxinfer.config.sampling_params import SamplingParams
from jaxinfer.errors import CheckpointError, ConfigError
from jaxinfer.jobs import session
from jaxinfer.jobs.cli import app
from tests.jobs.fake_llm import FakeLLM


def test_generate_passes_only_what_was_set(runner: CliRunner, opened: list[FakeLLM]) -> None:
    arguments = "generate some-model --prompt a --prompt b --top-k 3 --stop x --stop y"
    done = runner.invoke(app, [*arguments.split(), "--ignore-eos", "--max-num-seqs", "4"])
    assert done.exit_code == 0, done.output
    (llm,) = opened
    assert llm.model == "some-model" and llm.options == {"max_num_seqs": 4}
    assert llm.asked == ["a", "b"] and llm.is_closed
    assert llm.params == [SamplingParams(top_k=3, stop=["x", "y"], ignore_eos=True)]


def test_limits_penalties_and_switches_of_the_loop(
    runner: CliRunner, opened: list[FakeLLM]
) -> None:
    arguments = (
        "generate m --prompt a --presence-penalty 1.5 --min-tokens 2 --logit-bias 5=-1 "
        "--logit-bias 7=2 --allowed-token-ids 5 --allowed-token-ids 7 --bad-words x "
        "--prompt-logprobs 1 --no-enable-prefix-caching --no-async-scheduling "
        "--num-decode-steps 4 --admission optimistic --preemption swap --trace loop.json"
    )
    done = runner.invoke(app, arguments.split())
    assert done.exit_code == 0, done.output
    (llm,) = opened
    assert llm.options == {
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "num_decode_steps": 4,
        "admission": "optimistic",
        "preemption": "swap",
        "trace": "loop.json",
    }
    assert llm.params == [
        SamplingParams(
            presence_penalty=1.5,
            min_tokens=2,
            logit_bias={5: -1, 7: 2},
            allowed_token_ids=[5, 7],
            bad_words=["x"],
            prompt_logprobs=1,
        )
    ]


def test_a_wrong_value_is_one_message_before_the_model_is_opened(
    runner: CliRunner, opened: list[FakeLLM]
) -> None:
    done = runner.invoke(app, ["generate", "m", "--prompt", "a", "--temperature", "3"])
    assert done.exit_code == 1 and not opened
    assert done.stderr.startswith("error: SamplingParams.temperature=3.0")
    assert "Traceback" not in done.output


def test_traceback_is_shown_on_request(runner: CliRunner, opened: list[FakeLLM]) -> None:
    arguments = ["--traceback", "generate", "m", "--prompt", "a", "--top-p", "0"]
    done = runner.invoke(app, arguments)
    assert isinstance(done.exception, ConfigError)


def test_an_error_of_loading_is_one_message(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(model: str, **_: object) -> None:
        raise CheckpointError(f"[{model}] is missing; check the path")

    monkeypatch.setattr(session, "open_llm", fail)
    done = runner.invoke(app, ["chat", "nowhere", "--message", "hi"])
    assert done.exit_code == 1
    assert done.stderr == "error: [nowhere] is missing; check the path\n"


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["generate", "m", "--temprature", "1"], "--temperature"),
        (["generate", "m", "--max-num-seq", "1"], "--max-num-seqs"),
        (["genrate"], "generate"),
    ],
)
def test_unknown_names_offer_the_nearest(
    runner: CliRunner, arguments: list[str], nearest: str
) -> None:
    done = runner.invoke(app, arguments)
    assert done.exit_code == 1  # 2 is for requests that failed
    assert nearest in done.stderr


@pytest.mark.parametrize("arguments", [["--unknown"], ["batch"], ["batch", "in", "-o", "o"]])
def test_a_wrong_command_line_is_a_failure(runner: CliRunner, arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == 1


def test_a_request_that_fails_shows_in_the_exit_code(
    runner: CliRunner, opened: list[FakeLLM]
) -> None:
    done = runner.invoke(app, ["generate", "m", "--prompt", "bad", "--prompt", "good one"])
    assert done.exit_code == 2
    assert "error: the prompt is bad" in done.stdout and "one good" in done.stdout


def test_prompt_file(runner: CliRunner, opened: list[FakeLLM], tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes("\ufefffirst\r\n\r\n  \r\nsecond".encode())
    done = runner.invoke(app, ["generate", "m", "--prompt-file", str(file)])
    assert done.exit_code == 0, done.output
    assert opened[0].asked == ["first", "second"]


def test_only_a_line_feed_ends_a_prompt(
    runner: CliRunner, opened: list[FakeLLM], tmp_path: Path
) -> None:
    """str.splitlines would also cut at form feeds, U+0085 and U+2028, which texts hold."""
    file = tmp_path / "prompts.txt"
    file.write_bytes("one\u2028line\x0cwith\x85all\r\nnext\n".encode())
    runner.invoke(app, ["generate", "m", "--prompt-file", str(file)])
    assert opened[0].asked == ["one\u2028line\x0cwith\x85all", "next"]


def test_no_prompt_is_refused(runner: CliRunner, opened: list[FakeLLM]) -> None:
    done = runner.invoke(app, ["generate", "m"])
    assert done.exit_code == 1 and not opened
    assert "--prompt-file" in done.stderr


def test_chat_once(runner: CliRunner, opened: list[FakeLLM]) -> None:
    done = runner.invoke(app, ["chat", "m", "--message", "you hello", "--system", "be brief"])
    assert done.exit_code == 0, done.output
    assert done.stdout == " hello you\n"
    assert opened[0].options == {"max_num_seqs": 8}
    system, user = opened[0].asked[0]
    assert system == {"role": "system", "content": "be brief"} and user["role"] == "user"


@pytest.mark.parametrize(
    "option",
    [["--n", "2"], ["--logprobs", "1"], ["--prompt-logprobs", "1"], ["--no-detokenize"]],
)
def test_chat_refuses_what_it_cannot_honour(
    runner: CliRunner, opened: list[FakeLLM], option: list[str]
) -> None:
    done = runner.invoke(app, ["chat", "m", "--message", "hi", *option])
    assert done.exit_code == 1 and not opened
    assert "No such option" in done.stderr


def test_chat_ends_with_the_input(runner: CliRunner, opened: list[FakeLLM]) -> None:
    done = runner.invoke(app, ["chat", "m"], input="you hello\n")
    assert done.exit_code == 0, done.output
    assert "hello you" in done.stdout and opened[0].is_closed


def test_demo_prints_its_tables(runner: CliRunner, opened: list[FakeLLM]) -> None:
    done = runner.invoke(app, ["demo", "--model", "m"])
    assert done.exit_code == 0, done.output
    assert opened[0].options == {"max_num_seqs": 8} and len(opened[0].asked) == 8
    for text in ("TTFT", "KV cache in use at the peak", "25.0%", "compile seconds", "1.5"):
        assert text in done.stdout
