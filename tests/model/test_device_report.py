"""What doctor asks of torch is what torch says here."""

import json
import subprocess
import sys

import torch

from runtime.process.device_report import device_report
from sessions.command.checks import read_device
from tests.support.architecture import ROOT


def test_the_report_is_of_this_machine_and_doctor_can_read_it() -> None:
    command = [sys.executable, "-m", "runtime.process.device_report"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    report = json.loads(asked.stdout)
    assert report["torch"] == torch.__version__ == device_report().torch
    assert len(report["gpus"]) == torch.cuda.device_count()
    assert [finding.what for finding in read_device(report)] == ["device", "kernels"]
