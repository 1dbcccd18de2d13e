# SPDX-License-Identifier: Apache-2.0
"""A real Slurm of one node on this machine: munged, slurmctld and slurmd, with a configuration of their own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")

_CONF = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmctldPort={port1}
SlurmdPort={port2}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=5,sched_interval=5,requeue_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
JobRequeue=1
KillWait=10
MinJobAge=300
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} RealMemory={memory} State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return why there can be no Slurm here, or an empty string."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_path()) is None]
    if absent:
        return f"no {', '.join(absent)} here (apt-get install slurm-wlm munge)"
    return "" if os.geteuid() == 0 else "the daemons of Slurm need root"


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start a cluster in ``folder`` and yield the environment in which its commands work.

    Raises:
        RuntimeError: the node does not come up.
    """
    folder.mkdir(parents=True)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    os.chmod(folder, 0o755)
    host = socket.gethostname().split(".")[0]
    ports = {"port1": _free_port(), "port2": _free_port()}
    memory = int(0.8 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**20)
    about = {"host": host, "cores": os.cpu_count(), "memory": memory, **ports}
    (folder / "slurm.conf").write_text(_CONF.format(folder=folder, **about))
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    values = {**os.environ, **environment}
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
         f"--pid-file={folder}/munge.pid", f"--seed-file={folder}/munge.seed", f"--log-file={folder}/munge.log"],
        ["slurmctld", "-D", "-f", str(folder / "slurm.conf")],
        ["slurmd", "-D", "-N", host, "-f", str(folder / "slurm.conf")],
    ]  # fmt: skip
    daemons = []
    try:
        for command in commands:
            with (folder / f"{command[0]}.out").open("wb") as out:
                daemons.append(
                    subprocess.Popen(command, env=values, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
                )
            time.sleep(1)
        for _ in range(120):
            shown = subprocess.run(
                ["sinfo", "--noheader", "--format", "%t"], env=values, capture_output=True, text=True, check=False
            )
            if "idle" in shown.stdout:
                break
            time.sleep(1)
        else:
            logs = "\n".join(path.read_text(errors="replace")[-800:] for path in sorted(folder.glob("*.log")))
            raise RuntimeError(f"Slurm does not come up: {shown.stdout} {shown.stderr}\n{logs}")
        yield environment
    finally:
        if len(daemons) == len(commands):
            subprocess.run(["scancel", "--me"], env=values, check=False, capture_output=True, timeout=60)
        for daemon in reversed(daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


def _path() -> str:
    return os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/usr/local/sbin"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
