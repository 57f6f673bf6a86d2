"""``deploy/kubernetes`` is what Kubernetes takes, with options that our commands take.

Core kinds are checked against the schemas of Kubernetes that ``kubernetes-validate`` brings; KEDA's
is only read, and its queries name metrics that there are.
"""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cluster.scaling import KV_FULL
from keepwarm.commands.cluster_settings import BALANCE_SETTINGS, UP_SETTINGS
from keepwarm.commands.registry import SETTINGS
from sessions.command.settings import Setting
from tests.support.architecture import ROOT

kubernetes_validate = pytest.importorskip("kubernetes_validate")

FOLDER = ROOT / "deploy/kubernetes"
CORE = ("keepwarm.yaml", "network.yaml")
VERSIONS = ("1.31", "1.34", "1.37")
Object = dict[str, Any]


def objects(*files: str) -> list[Object]:
    return [
        each
        for name in files
        for each in yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8"))
    ]


def one(kind: str, name: str) -> Object:
    (found,) = [
        each for each in objects(*CORE) if (each["kind"], each["metadata"]["name"]) == (kind, name)
    ]
    return found


def pods() -> Iterator[Object]:
    """The pod templates."""
    yield from (each["spec"]["template"] for each in objects(*CORE) if "template" in each["spec"])


SERVER = one("StatefulSet", "keepwarm")["spec"]["template"]["spec"]
BALANCE = one("Deployment", "keepwarm-balance")["spec"]["template"]["spec"]


def options(container: Object, settings: tuple[Setting, ...], verbs: int) -> dict[str, str]:
    """The arguments behind the command's words, by option; all of them are options."""
    known = {setting.flag for setting in settings}
    found = dict(word.partition("=")[::2] for word in container["args"][verbs:])
    assert set(found) <= known
    return found


def test_every_file_is_looked_at() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*CORE, "keda.yaml"}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_core_object_is_one_by_kubernetes_own_schemas(version: str) -> None:
    found = objects(*CORE)
    assert len(found) >= 8
    for each in found:
        kubernetes_validate.validate(each, version, strict=True)


def test_the_schemas_would_refuse_an_object_that_is_none() -> None:
    broken = one("StatefulSet", "keepwarm")
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSIONS[-1], strict=True)


def test_a_server_is_given_options_that_there_are_and_the_time_that_they_need() -> None:
    (container,) = SERVER["containers"]
    assert container["args"][0] == "serve"
    given = options(container, SETTINGS["serve"], 1)
    by_name = {setting.name: setting for setting in SETTINGS["serve"]}
    drain = float(given.get("--drain-seconds", by_name["drain_seconds"].default))
    notice = float(given.get("--drain-notice-s", by_name["drain_notice_s"].default))
    assert SERVER["terminationGracePeriodSeconds"] == drain + notice + 15
    variables = {setting.variable for setting in SETTINGS["serve"]}
    named = {each["name"] for each in container["env"]}
    assert {name for name in named if name.startswith("KEEPWARM_")} <= variables
    assert given["--advertise"] == "$(POD_IP)"
    folders = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert any(given["--disk-kv-folder"].startswith(folder) for folder in folders)
    assert one("StatefulSet", "keepwarm")["spec"]["ordinals"] == {"start": 1}


def test_a_balance_is_given_options_that_there_are_and_the_cluster_of_the_servers() -> None:
    (container,) = BALANCE["containers"]
    assert container["args"][:2] == ["cluster", "balance"]
    given = options(container, BALANCE_SETTINGS, 2)
    servers = options(SERVER["containers"][0], SETTINGS["serve"], 1)
    assert given["--cluster"] == servers["--cluster"]
    port = int(given["--bind"].rpartition(":")[2])
    assert container["ports"][0]["containerPort"] == port
    assert one("Service", "keepwarm")["spec"]["ports"][0]["port"] == port


def test_no_service_gives_a_pod_a_variable_that_is_an_options_name() -> None:
    """A Service named ``keepwarm`` would set KEEPWARM_PORT."""
    found = list(pods())
    assert len(found) == 2
    assert [each["spec"]["enableServiceLinks"] for each in found] == [False, False]


def test_sockets_stay_while_an_engine_starts_and_pods_have_no_rights() -> None:
    (server,) = SERVER["containers"]
    assert server["livenessProbe"]["httpGet"]["path"] == "/health"
    assert server["startupProbe"]["httpGet"]["path"] == "/health"
    for pod in pods():
        assert pod["spec"]["securityContext"]["runAsNonRoot"]
        for container in pod["spec"]["containers"]:
            mine = container["securityContext"]
            assert mine["capabilities"] == {"drop": ["ALL"]}
            assert mine["readOnlyRootFilesystem"]
            assert not mine["allowPrivilegeEscalation"]


def test_whatever_selects_pods_finds_some() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods()]
    for each in objects(*CORE):
        spec = each["spec"]
        wanted = spec.get("selector") or spec.get("podSelector") or {}
        wanted = wanted.get("matchLabels", wanted)
        assert not wanted or any(wanted.items() <= mine.items() for mine in labels), each["kind"]


def test_kedas_object_is_read_scales_the_servers_and_asks_for_metrics_that_there_are() -> None:
    (scaled,) = objects("keda.yaml")
    spec = scaled["spec"]
    assert one(spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"])
    known = set(re.findall(r"\| `(keepwarm_\w+)`", (ROOT / "docs/metrics.md").read_text()))
    queries = [each["metadata"]["query"] for each in spec["triggers"]]
    asked = {name for query in queries for name in re.findall(r"keepwarm_\w+", query)}
    assert asked == {"keepwarm_turns_running", "keepwarm_turns_waiting", "keepwarm_kv_usage_ratio"}
    assert asked <= known
    turns, kv = (float(each["metadata"]["threshold"]) for each in spec["triggers"])
    (default,) = [each.default for each in UP_SETTINGS if each.name == "turns_per_replica"]
    assert (turns, kv) == (default, KV_FULL)
    assert spec["minReplicaCount"] == one("StatefulSet", "keepwarm")["spec"]["replicas"]
