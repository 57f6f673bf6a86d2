"""The process that tries grammars: frames in, verdicts out, and nothing else among them."""

import io
import struct
import subprocess
import sys
from pathlib import Path

import orjson

from runtime.grammar.probe_process import LENGTH, frame, serve
from tests.support.grammars import compiler, schema_spec, small_tokenizer
from tools_api.grammar import GrammarSpec


def test_the_child_answers_each_frame_and_ends_with_its_input(tmp_path: Path) -> None:
    def question(spec: GrammarSpec) -> bytes:
        body = orjson.dumps({"lark": spec.lark, "after": spec.after, "trigger": spec.trigger})
        return struct.pack("<I", len(body)) + body

    good, bad = schema_spec({"type": "integer"}), schema_spec({"properties": {"a": {"not": {}}}})
    requests, answers = io.BytesIO(question(good) + question(bad)), io.BytesIO()
    serve(requests, answers, compiler(small_tokenizer(tmp_path)), memory=10**9)
    data, found = answers.getvalue(), []
    while data:
        (length,) = struct.unpack_from("<I", data)
        found.append(orjson.loads(data[4 : 4 + length]))
        data = data[4 + length :]
    assert found[0] is None
    assert found[1]["keyword"] == "not"
    assert found[1]["path"] == ["properties", "a", "not"]


def test_it_says_what_is_wrong_with_its_tokenizer_and_ends(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "runtime.grammar.probe_process", str(tmp_path), "1000000"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    (length,) = LENGTH.unpack(ran.stdout[: LENGTH.size])
    assert ran.returncode == 1
    assert "tokenizer.json" in orjson.loads(ran.stdout[LENGTH.size :])["error"]
    assert len(ran.stdout) == LENGTH.size + length


def test_a_frame_is_its_length_and_json() -> None:
    assert frame({"a": 1}) == b"\x07\x00\x00\x00" + b'{"a":1}'
