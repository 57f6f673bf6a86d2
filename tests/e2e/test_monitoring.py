"""``examples/monitoring`` is true: its alerts fire, its queries find something on a real server.

promtool and Prometheus are Debian's, the types of Grafana's boards are npm's; where one of them is
not to be had its tests are skipped, with its name.
"""

import asyncio
import contextlib
import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from keepwarm.demo.child_server import child_server
from sessions.tenants import ApiKey, Role
from sessions.tenants_file import key_row
from tests.support.architecture import ROOT
from tests.support.wire_client import WireClient

FOLDER = ROOT / "examples/monitoring"
RULES = FOLDER / "keepwarm.rules.yml"
TESTS = FOLDER / "keepwarm.rules.test.yml"
BOARD = FOLDER / "grafana-board.json"
TYPES = Path(__file__).parent / "grafana"
KEY = "an-operators-key"
OPTIONS = [
    *("--model", "random:qwen3-tiny", "--threads", "1", "--num-blocks", "64"),
    *("--host-kv-mib", "16", "--price", "input=1,cached=0.1,output=2"),
]
"""A pool so small that sessions are moved to host memory, and prices, so that there is a cost."""
LOAD_S = 60.0
VARIABLES = {"$__rate_interval": "10s", "$__range": "1m", "$instance": ".+"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
          "additionalProperties": False}  # fmt: skip


def needs(command: str) -> str:
    """The path of a program, or the test is skipped."""
    found = shutil.which(command)
    if found is None:
        pytest.skip(f"{command} is not installed")
    return found


def promtool(*words: str | Path) -> None:
    done = subprocess.run(
        [needs("promtool"), *words], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def board_queries(board: dict[str, Any]) -> list[str]:
    found = []
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            found.append(expression)
    return found


def load_board() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(BOARD.read_text(encoding="utf-8"))
    return board


def test_every_metric_that_is_asked_for_is_in_the_document() -> None:
    known = set(re.findall(r"\| `(keepwarm_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    for path in (RULES, BOARD):
        asked = set(re.findall(r"\bkeepwarm_\w+", path.read_text(encoding="utf-8")))
        plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
        assert plain, path.name
        assert plain <= known, path.name


def test_every_alert_is_fired_and_kept_from_firing_in_the_rules_tests() -> None:
    alerts = set(re.findall(r"alert: (\w+)", RULES.read_text(encoding="utf-8")))
    text = TESTS.read_text(encoding="utf-8")
    quiet = set(re.findall(r"alertname: (\w+), exp_alerts: \[\]", text))
    fired = set(re.findall(r"alertname: (\w+)\n +exp_alerts:\n +- exp_labels", text))
    assert len(alerts) >= 9
    assert quiet == fired == alerts


def test_rules_and_configuration_are_sound_and_each_alert_fires_when_it_should() -> None:
    promtool("check", "config", FOLDER / "prometheus.yml")
    promtool("check", "rules", RULES)
    promtool("test", "rules", TESTS)


def test_the_board_hangs_together() -> None:
    """What Grafana's own types do not say."""
    board = load_board()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
    names = {variable["name"] for variable in board["templating"]["list"]}
    assert names == {"datasource", "instance"}
    queries = board_queries(board)
    assert len(queries) > 40
    assert not [query for query in queries if "$" in query]


# Against Grafana's types


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the pinned compiler and the types of Grafana's boards."""
    npm = needs("npm")
    folder = tmp_path_factory.mktemp("grafana")
    shutil.copytree(TYPES, folder, dirs_exist_ok=True)
    done = subprocess.run(
        [npm, "ci", "--ignore-scripts"],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "EINTEGRITY" not in done.stderr, done.stderr
    if done.returncode != 0:
        pytest.skip(f"npm cannot get @grafana/schema: {done.stderr.strip().splitlines()[-1:]}")
    return folder


def complaints(board: dict[str, Any], folder: Path) -> str:
    """What the compiler says of a board that is taken for one of Grafana's."""
    raw = "@grafana/schema/dist/esm/raw"
    lines = [
        f'import type {{ Dashboard }} from "{raw}/dashboard/x/Dashboard_types.gen";',
        f'import type * as stat from "{raw}/composable/stat/panelcfg/x/StatPanelCfg_types.gen";',
        "import type * as timeseries from "
        f'"{raw}/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";',
        # Their enums are what JSON has as strings and numbers.
        "type Plain<T> = T extends string ? `${T}` : T extends number",
        "  ? (`${T}` extends `${infer N extends number}` ? N : never)",
        "  : T extends (infer U)[] ? Plain<U>[]",
        "  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;",
        f"export const board: Plain<Dashboard> = {json.dumps(board)};",
    ]
    for panel in board["panels"]:
        kind, number = panel["type"], panel["id"]
        if kind != "row":
            text = json.dumps(panel["options"])
            lines.append(f"export const o{number}: Plain<{kind}.Options> = {text};")
        if kind == "timeseries":
            text = json.dumps(panel["fieldConfig"]["defaults"]["custom"])
            lines.append(f"export const c{number}: Plain<timeseries.FieldConfig> = {text};")
    (folder / "board.ts").write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [folder / "node_modules/.bin/tsc", "--project", folder],
        cwd=folder, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout[:2000] + done.stderr[:2000]


def test_the_board_is_one_by_grafanas_own_types(types: Path) -> None:
    assert complaints(load_board(), types) == ""


@pytest.mark.parametrize("fault", ["misspelt", "unknown panel option", "no such stacking"])
def test_grafanas_types_would_refuse_a_board_that_is_none(types: Path, fault: str) -> None:
    board = load_board()
    panel = next(panel for panel in board["panels"] if panel["type"] == "timeseries")
    if fault == "misspelt":
        panel["gridpos"] = panel.pop("gridPos")
    elif fault == "unknown panel option":
        panel["options"]["legend"]["placing"] = "bottom"
    else:
        panel["fieldConfig"]["defaults"]["custom"]["stacking"] = {"mode": "piled"}
    assert "error TS" in complaints(board, types)


# On a real server


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@contextlib.contextmanager
def prometheus(target: str, folder: Path) -> Iterator[httpx.Client]:
    """The shipped configuration, only faster, with the key, and pointed at ``target``."""
    program = needs("prometheus")
    config = (FOLDER / "prometheus.yml").read_text(encoding="utf-8")
    config = config.replace("_interval: 15s", "_interval: 1s")
    labelled = f'["{target}"]\n        labels: {{cluster: tests}}'  # as a balance would tell it
    config = config.replace('["127.0.0.1:8080"]', labelled)
    config = re.sub(r"# (authorization:|  credentials_file)", r"\1", config)
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    (folder / "operator.key").write_text(KEY, encoding="utf-8")
    shutil.copy(RULES, folder)
    port = free_port()
    command = [
        *(program, f"--config.file={folder}/prometheus.yml"),
        *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"),
    ]
    with (
        (folder / "prometheus.log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
    ):
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10) as client:
                yield client
        finally:
            process.terminate()


async def one_round(url: str, number: int) -> None:
    """A little of everything: turns that go on, a grammar, a budget that is too small, an error,
    an answer over HTTP."""
    client = await WireClient.open(url, additional_headers={"Authorization": f"Bearer {KEY}"})
    words = " ".join(f"{word}-{number}" for word in range(60))
    for _ in range(2):
        await client.turn(
            input=words, max_output_tokens=6, keepwarm={"session": f"s{number % 7}"},
            truncation="auto",
        )  # fmt: skip
    text = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}
    await client.turn(input="Answer.", max_output_tokens=24, text=text)
    await client.turn(input="Hi", keepwarm={"budget": {"output": 0}})
    await client.turn(input="Hi", previous_response_id="resp_unknown")
    await client.close()
    async with httpx.AsyncClient() as plain:
        await plain.get(url + "/models")


def finds_numbers(client: httpx.Client, query: str) -> bool:
    try:
        answer = client.get("/query", params={"query": query})
    except httpx.ConnectError:
        return False  # it is starting
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        return False  # it listens and is not ready yet
    assert answer.status_code == 200, (query, answer.text)
    return any(sample["value"][1] != "NaN" for sample in answer.json()["data"]["result"])


def rules(client: httpx.Client) -> list[dict[str, Any]]:
    groups = client.get("/rules").json()["data"]["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_every_query_of_rules_and_board_finds_numbers_under_load(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text(key_row(ApiKey.of(KEY, tenant="acme", role=Role.OPERATOR)), encoding="utf-8")
    alerts = re.findall(r"expr: (.+) (?:>|==) [\d.]+\n", RULES.read_text(encoding="utf-8"))
    assert len(alerts) >= 9
    missing = [*alerts, *board_queries(load_board())]

    async def load(url: str, client: httpx.Client) -> None:
        """Until every query has found something."""
        number = 0
        async with asyncio.timeout(LOAD_S):
            while missing:
                await one_round(url, number)
                number += 1
                missing[:] = [query for query in missing if not finds_numbers(client, query)]

    options = [*OPTIONS, "--tenants-file", str(keys)]
    with child_server(options, log=tmp_path / "server.log") as server:
        address = server.url.removeprefix("http://").removesuffix("/v1")
        with prometheus(address, tmp_path) as client:
            with contextlib.suppress(TimeoutError):
                asyncio.run(load(server.url, client))
            assert missing == []
            found = rules(client)
            assert {rule["health"] for rule in found} == {"ok"}, found
            assert {"recording", "alerting"} == {rule["type"] for rule in found}
