"""`python -m avactl_worker.health_check`: exits with 0 (start), 79 (replace this pod) or 80 (fail the job)."""

from __future__ import annotations

import argparse
import os
import sys
import traceback

from avactl_worker.health_check import STARTS, Settings, check


def _settings() -> Settings:
    parser = argparse.ArgumentParser(prog="python -m avactl_worker.health_check")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--coordinator", metavar="HOST:PORT", required=True, help="worker 0 in the check")
    parser.add_argument("--rendezvous", type=int, required=True, help="port of worker 0 in training")
    parser.add_argument("--size", type=int, required=True, help="bytes of an all-reduce")
    parser.add_argument("--timeout", type=float, required=True, help="seconds of a test")
    parser.add_argument("--wait", type=float, required=True, help="seconds to wait for other workers")
    parser.add_argument("--replacements", type=int, required=True, help="workers replaced at most")
    parser.add_argument("--below", type=float, required=True, help="share of the median speed of slow workers")
    parser.add_argument("--replace-slow", action="store_true")
    parser.add_argument("--gpus", type=int, default=0, help="GPUs of this pod")
    given = parser.parse_args()
    host, _, port = given.coordinator.rpartition(":")
    env = os.environ
    before = (env.get("AVACTL_FAILURES", ""), env.get("AVACTL_IGNORED_FAILURES", ""))
    return Settings(
        given.workers,
        (host, int(port)),
        given.rendezvous,
        given.size,
        given.timeout,
        given.wait,
        given.replacements,
        given.below,
        given.replace_slow,
        index=int(env.get("AVACTL_FIRST_INDEX", "0")) + int(env["JOB_COMPLETION_INDEX"]),
        address=env["POD_IP"],
        run=env.get("AVACTL_RUN", ""),
        incarnation=env.get("POD_UID", ""),
        gpus=given.gpus,
        restarts=sum(int(each) for each in before if each.isdecimal()),
    )


def _log(message: str) -> None:
    print(f"health check: {message}", flush=True)


def main() -> int:
    """Run the check. A defect of the check itself does not keep the training from starting."""
    settings = _settings()
    try:
        code, message = check(settings, _log)
    except Exception:
        traceback.print_exc()
        code, message = STARTS, "warning: this node is not checked: the check itself has failed"
    _log(message)
    return code


if __name__ == "__main__":
    sys.exit(main())
