"""What do workers learn of each other, through the parent? Used client secrets, metrics, where clients have calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

from transports.refusal import Refused
from transports.shared_secrets import SecretNotes
from transports.worker_channel import Message
from transports.worker_port import IN_SERVICE, SILENT_S, Worker

MOST_CLIENTS = 1000
"""Of those that a worker is told of: a message has a longest length."""


class Notices:
    """What passes between workers. Used on the parent's event loop.

    Args:
        workers: By number; changed by their owner.

    Attributes:
        lost: Workers that died.
    """

    def __init__(self, workers: Mapping[int, Worker]) -> None:
        self._workers = workers
        self._secrets = SecretNotes()
        self.lost = 0

    def hear(self, worker: Worker, message: Message) -> None:
        """Do what a worker asks for, and pass on what it answers."""
        head = message.head
        match head["do"]:
            case "load":
                worker.load, worker.received = head["load"], head["received"]
                worker.refusing = head["refusing"]
                if head["clients"] != worker.clients:
                    worker.clients = Counter(head["clients"])
                    self.share_clients()
            case "metrics":
                self._ask_others(worker, head["ask"])
            case "answer":
                if (asker := self._workers.get(head["to"])) is not None:
                    asker.tell(head, message.data)
            case "keep" | "claim" | "release":
                # others' messages that are here already come first: a secret is kept before it can be claimed
                asyncio.get_running_loop().call_soon(self._note, worker, message)

    def share_clients(self) -> None:
        """Tell each worker which clients have conversations with the others."""
        total: Counter[str] = Counter()
        for worker in self._workers.values():
            total.update(worker.clients)
        for worker in self._workers.values():
            clients = Counter(dict((total - worker.clients).most_common(MOST_CLIENTS)))
            if worker.state in (*IN_SERVICE, "retiring") and clients != worker.told:
                worker.told = clients
                worker.tell({"do": "others", "clients": clients})

    def _note(self, worker: Worker, message: Message) -> None:
        """Do what is asked about a client secret."""
        head, kept, refused = message.head, None, None
        try:
            match head["do"]:
                case "keep":
                    what = head["id"], message.data, head["expires_at"], head["maker"], head["share"]
                    self._secrets.keep(*what)
                case "claim":
                    kept = self._secrets.claim(head["id"], head["expires_at"])
                case _:
                    self._secrets.release(head["id"])
                    return
        except Refused as error:
            refused = "used" if error.status == 401 else "full"
        answer = {"do": "answer", "ask": head["ask"], "refused": refused, "kept": kept is not None}
        worker.tell(answer, kept or b"")

    def _ask_others(self, asker: Worker, number: int) -> None:
        """Have all other workers send their metrics; those that don't react are not waited for."""
        now = asyncio.get_running_loop().time()
        able = (*IN_SERVICE, "retiring", "stopping")
        others = [w for w in self._workers.values() if w is not asker and w.state in able]
        head = {"do": "metrics", "ask": number, "from": asker.number}
        asked = [w.number for w in others if now <= w.heard_at + SILENT_S and w.tell(head)]
        asker.tell({"do": "answer", "ask": number, "asked": asked}, self._metrics().encode())

    def _metrics(self) -> str:
        states = Counter({"ready": 0, "retiring": 0, "starting": 0})
        for worker in self._workers.values():
            states[worker.state if worker.state in states else "starting"] += 1
        lines = ["# HELP voice_workers Processes that serve this port.", "# TYPE voice_workers gauge"]
        lines += [f'voice_workers{{state="{state}"}} {count}' for state, count in sorted(states.items())]
        lines += [
            "# HELP voice_workers_lost_total Workers that died.",
            "# TYPE voice_workers_lost_total counter",
        ]
        return "\n".join([*lines, f"voice_workers_lost_total {self.lost}", ""])
