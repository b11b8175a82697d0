"""Puts the programs of premix into the wheel, if PREMIX_WHEEL_BIN names their directory."""

import os
from typing import Any, Dict

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The programs are static, so that they need no library of a distribution.
TAG = "py3-none-manylinux2014_{0}.manylinux_2_17_{0}.musllinux_1_1_{0}"
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


class Programs(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: Dict[str, Any]) -> None:
        programs = os.environ.get("PREMIX_WHEEL_BIN")
        if not programs:
            return  # premix is looked for on PATH
        machine = MACHINES[os.environ.get("PREMIX_WHEEL_ARCH", "amd64")]
        build_data["tag"] = TAG.format(machine)
        build_data["pure_python"] = False
        for name in ("premix", "premix-shim", "premix-demo"):
            build_data["shared_scripts"][os.path.join(programs, name)] = name
