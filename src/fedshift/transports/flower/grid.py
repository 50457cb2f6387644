"""The transport's one contact with Flower: client and server apps, the grid, grids for tests.

In ``transports`` no other module imports Flower, so this is the one to adapt when Flower's
interface changes. ``deploy.flower``, ``testing`` and users' own Flower apps call it. It converts
and forwards messages; the federated loop must stay outside.
"""

from __future__ import annotations

import logging
import queue
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import fedshift.transports.flower.quiet  # noqa: F401  before Flower looks at the environment

# isort: split
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from fedshift.base import seeds
from fedshift.base.errors import RunError
from fedshift.core.config import RunConfig
from fedshift.core.server import Transport
from fedshift.engine.build import Plan
from fedshift.transports.flower.envelope import Envelope
from fedshift.transports.flower.site import (
    Header,
    NodeConfig,
    OpenWorker,
    SiteHandler,
    WhoAmI,
    error_line,
    named,
)
from fedshift.transports.flower.transport import FlowerTransport, SiteReply, SiteRequest, Timeouts

Connect = Callable[[Plan], Transport]
HANDLER_FAILED = 2  # Flower's ErrorCode.CLIENT_APP_RAISED_EXCEPTION


def to_records(envelope: Envelope, header: Header | None, arrays: dict[int, Array]) -> RecordDict:
    """An envelope as Flower's records.

    ``arrays`` is a cache that the requests of one exchange share: a block that many of them hold,
    such as the model, becomes one Flower array, which is hashed once.
    """
    config: dict[str, Any] = {"messages": envelope.text}
    if header is not None:
        config |= {"run": header.run, "fedshift": header.version}
        config |= {"selected": list(header.selected)} if header.selected else {}
    record = ArrayRecord()
    for name, block in envelope.blocks.items():
        if id(block) not in arrays:
            arrays[id(block)] = Array("uint8", (len(block),), "fedshift.block", block)
        record[name] = arrays[id(block)]
    return RecordDict({"config": ConfigRecord(config), "arrays": record})


def from_records(content: RecordDict) -> tuple[Envelope, Header]:
    """Inverse of :func:`to_records`."""
    config = content.config_records["config"]
    blocks = {name: array.data for name, array in content.array_records["arrays"].items()}
    selected = config.get("selected", [])
    rounds = tuple(r for r in selected if type(r) is int) if isinstance(selected, list) else ()
    header = Header(str(config.get("run", "")), str(config.get("fedshift", "")), rounds)
    return Envelope(str(config["messages"]), blocks), header


def client_app(
    open_worker: OpenWorker,
    whoami: WhoAmI = named,
    before: Callable[[RunConfig, Header], None] | None = None,
) -> ClientApp:
    """A ClientApp for any method: answers ``train``, ``query`` and ``query.whoami``.

    Args:
        open_worker: (run, node) -> Worker; called for each request, and free to return a worker
            that it has kept. ``node`` is the node's configuration, completed by the run's.
        whoami: (run, node) -> the client's id.
        before: (run, header) -> None; called before each request's visits.
    """
    app = ClientApp()
    handler = SiteHandler(open_worker, whoami, before)

    def answer(message: Message, context: Context) -> Message:
        return respond(message, context, handler.answer)

    def introduce(message: Message, context: Context) -> Message:
        return respond(message, context, lambda header, _, node: handler.introduce(header, node))

    app.train()(answer)
    app.query()(answer)
    app.query("whoami")(introduce)
    return app


def respond(
    message: Message, context: Context, handle: Callable[[Header, Envelope, NodeConfig], Envelope]
) -> Message:
    """The handler's answer as a Flower reply; an exception becomes an error reply of one line."""
    try:
        envelope, header = from_records(message.content)
        node = {**context.run_config, **context.node_config}
        answer = handle(header, envelope, node)
    except Exception as error:  # whatever it is, the server must be sent it
        return Message(Error(HANDLER_FAILED, error_line(error)), reply_to=message)
    return Message(to_records(answer, None, {}), reply_to=message)


def server_app(
    play: Callable[[Connect, Mapping[str, Any]], object], timeouts: Timeouts | None = None
) -> ServerApp:
    """A ServerApp whose main function runs fedshift's own loop; Flower only carries messages.

    Args:
        play: (connect, settings) -> anything; carries out a run, such as
            :func:`fedshift.deploy.flower.simulated.play_settings`. ``connect`` goes into
            ``Options(transport=connect)``; ``settings`` is the configuration of the Flower run.
        timeouts: how long to wait for sites and replies.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        play(connected(grid, timeouts), dict(context.run_config))

    return app


def connected(grid: Grid, timeouts: Timeouts | None = None) -> Connect:
    """Make a Flower grid the transport of a run, for ``Options(transport=...)``."""
    return lambda plan: FlowerTransport(
        FlowerGrid(grid), plan.config, store=plan.store, timeouts=timeouts, policy=plan.policy
    )


class FlowerGrid:
    """Flower's grid as a :class:`~fedshift.transports.flower.transport.MessageGrid`."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    def nodes(self) -> set[int]:
        """See :class:`~fedshift.transports.flower.transport.MessageGrid`."""
        return set(self.grid.get_node_ids())

    def send(self, requests: Sequence[SiteRequest]) -> list[str]:
        """See :class:`~fedshift.transports.flower.transport.MessageGrid`."""
        arrays: dict[int, Array] = {}
        messages = [
            Message(
                to_records(request.envelope, request.header, arrays), request.node, request.kind
            )
            for request in requests
        ]
        tickets = list(self.grid.push_messages(messages))
        if len(tickets) < len(requests) or not all(tickets):
            raise RunError(
                f"Flower accepted {sum(map(bool, tickets))} of {len(requests)} messages; "
                "see its log"
            )
        return tickets

    def fetch(self, tickets: set[str]) -> list[SiteReply]:
        """See :class:`~fedshift.transports.flower.transport.MessageGrid`."""
        return [self._read(message) for message in self.grid.pull_messages(tickets)]

    @staticmethod
    def _read(message: Message) -> SiteReply:
        ticket = message.metadata.reply_to_message_id
        if message.has_error():
            reason = message.error.reason or f"Flower's error {message.error.code}"
            return SiteReply(ticket, None, reason)
        try:
            return SiteReply(ticket, from_records(message.content)[0])
        except (KeyError, TypeError, ValueError) as error:
            return SiteReply(ticket, None, f"not a reply of fedshift ({error!r})")


class InMemoryGrid(Grid):
    """A grid for tests that calls the real ClientApp in this process; one node per configuration.

    Node numbers are random but reproducible, so that code that relies on their order fails. A
    message is kept until its reply is asked for, and then answered.
    """

    def __init__(self, app: ClientApp, nodes: Sequence[Mapping[str, Any]]) -> None:
        self._app = app
        self._run = Run.create_empty(run_id=1)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._contexts = {}
        for i, config in enumerate(nodes):
            node = seeds.derive("node", i)
            self._contexts[node] = Context(1, node, dict(config), RecordDict(), {})
        self._waiting: dict[str, Message] = {}

    def play(self, server: ServerApp, settings: Mapping[str, Any] | None = None) -> None:
        """Call a ServerApp with this grid."""
        server(self, Context(1, 1, {}, RecordDict(), dict(settings or {})))

    def set_run(self, run: Run) -> None:
        """See :class:`Grid`."""
        self._run = run

    @property
    def run(self) -> Run:
        """See :class:`Grid`."""
        return self._run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """See :class:`Grid`, where it is deprecated."""
        return Message(*args, **kwargs)

    def get_node_ids(self) -> list[int]:
        """See :class:`Grid`."""
        return sorted(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until their replies are asked for; see :class:`Grid`."""
        tickets = []
        for message in messages:
            tickets.append(uuid.uuid4().hex)
            message.metadata.__dict__["_message_id"] = tickets[-1]
            self._waiting[tickets[-1]] = message
        return tickets

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Answer one of the messages, so that a single reply is in memory at a time."""
        wanted = set(message_ids)
        ticket = next((ticket for ticket in self._waiting if ticket in wanted), None)
        if ticket is None:
            return []
        message = self._waiting.pop(ticket)
        return [self._app(message, self._contexts[message.metadata.dst_node_id])]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Answer all messages, in order."""
        del timeout
        tickets = self.push_messages(messages)
        return [reply for ticket in tickets for reply in self.pull_messages([ticket])]


class Simulation:
    """Flower's simulation on Ray, in a background thread; ``grid`` is the server's side of it.

    Flower's ``run_simulation`` calls a ServerApp and returns when that ends, but our loop must stay
    in the caller's thread. So the ServerApp here only hands its grid to the caller and then waits
    until :meth:`close`.
    """

    def __init__(self, app: ClientApp, nodes: int, workers: int) -> None:
        logging.getLogger("flwr").setLevel(logging.CRITICAL)
        self._done = threading.Event()
        opened: queue.Queue[Grid | BaseException] = queue.Queue()
        server = ServerApp()

        @server.main()
        def main(grid: Grid, context: Context) -> None:
            del context
            opened.put(grid)
            self._done.wait()

        config: Any = {
            "init_args": {
                "num_cpus": workers,
                "include_dashboard": False,
                "log_to_driver": False,
                "logging_level": "error",
            },
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        }

        def simulate() -> None:
            try:
                run_simulation(server, app, nodes, backend_config=config)
            except BaseException as error:  # raised in the thread that waits for the grid
                opened.put(error)

        self._thread = threading.Thread(target=simulate, daemon=True)
        self._thread.start()
        found = opened.get()
        if isinstance(found, BaseException):
            raise found
        self.grid = found

    def close(self) -> None:
        """Let the ServerApp return, which ends the simulation and Ray."""
        self._done.set()
        self._thread.join(60)
