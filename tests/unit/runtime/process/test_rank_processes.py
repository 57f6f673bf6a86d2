"""The other ranks' processes: none for one rank, and none where the model cannot be cut."""

import subprocess
import sys
from pathlib import Path
from socket import socketpair

import pytest

from runtime.config import EngineConfig
from runtime.model.config import LoadError
from runtime.process import rank_frames
from runtime.process.frames import FrameError
from runtime.process.rank_frames import RankMet, RankStart
from runtime.process.rank_processes import (
    Peer,
    RankProcesses,
    check_ranks,
    partition_of,
    start_rank_processes,
    where_ranks_meet,
)


def config_of(model: str, ranks: int, *, whole_experts: bool = False) -> EngineConfig:
    return EngineConfig(model=model, tensor_parallel=ranks, expert_parallel=whole_experts)


def test_one_rank_has_no_further_process() -> None:
    check_ranks(config_of("random:qwen3.5-100m", 1))  # a model that could not be cut
    assert start_rank_processes(config_of("random:qwen3-tiny", 1), "text", None) is None


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (config_of("random:qwen3-tiny-4", 3), "4 heads are not a multiple of 3"),
        (config_of("random:lfm2-tiny", 3), "64 channels are not a multiple of 3"),
        (config_of("random:qwen3-tiny", 2, whole_experts=True), "has no experts"),
        (config_of("/nowhere", 2), "no such folder"),
    ],
)
def test_what_cannot_be_cut_is_known_before_a_process_is_started(
    config: EngineConfig, said: str
) -> None:
    with pytest.raises(LoadError, match=said):
        check_ranks(config)


def test_rank_0_is_told_its_folder_and_nothing_else() -> None:
    config, ours = config_of("random:qwen3-tiny", 2), EngineConfig()
    for message, said in (
        (RankStart(rank=0, folder="/there"), None),
        (RankStart(rank=1, folder="/there"), "RankStart where rank 0 is told"),
        (RankMet(), "RankMet where rank 0 is told"),
    ):
        server, engine = socketpair()
        with server, engine:
            server.sendall(rank_frames.encode(message))
            if said is None:
                assert where_ranks_meet(engine, config) == Path("/there")
            else:
                with pytest.raises(FrameError, match=said):
                    where_ranks_meet(engine, config)
            assert where_ranks_meet(engine, ours) is None


def test_a_ranks_place_is_as_the_configuration_says() -> None:
    place = partition_of(config_of("random:qwen3-moe-tiny-4", 4, whole_experts=True), 3)
    assert (place.ranks, place.rank, place.whole_experts, place.leads) == (4, 3, True, False)


def _peer(program: str) -> Peer:
    ours, theirs = socketpair()
    theirs.close()
    process = subprocess.Popen([sys.executable, "-S", "-c", program])
    return Peer(rank=1, connection=ours, process=process)


def test_how_a_process_ended_is_said_in_words(tmp_path: Path) -> None:
    left = _peer("raise SystemExit(3)")
    killed = _peer("import os; os.kill(os.getpid(), 9)")
    for peer, said in ((left, "ended with status 3"), (killed, "was killed by SIGKILL")):
        peer.process.wait()
        assert peer.ending() == said
    folder = tmp_path / "meeting"
    folder.mkdir()
    going_on = _peer("import time; time.sleep(600)")
    RankProcesses([left, killed, going_on], folder).kill()
    assert going_on.process.wait() == -9
    assert not folder.exists()
