"""An agent that answers the telephone, through Twilio: ``python examples/twilio_call.py``

1. Make port 8080 of this machine reachable by https, by a proxy or a tunnel that passes WebSockets on.
2. Set ``PUBLIC_URL`` to that address (``https://voice.example.org``) and ``TWILIO_AUTH_TOKEN`` to the token on the
   start page of the Twilio console, so that nobody but Twilio can call.
3. In the console, at the number's *Voice Configuration*, let "A call comes in" be a *Webhook* with *HTTP POST* to
   ``https://voice.example.org/twilio/voice``. It is answered with the TwiML that connects the call to ``/twilio``.

Then call the number. Keys arrive as a message, ``[keys pressed: 1234]``.
"""

import asyncio
import os

from stages import presets
from transports.options import ServerOptions
from transports.server import Server, WarmUp, app
from transports.serving import listen, serve
from voice import Agent
from voice.interfaces import Stages

ORDERS = {"1234": "was sent yesterday", "5678": "is being packed"}


def order_status(number: str) -> str:
    """Where an order is.

    Args:
        number: The order's number, digits only.
    """
    return f"Order {number} {ORDERS.get(number, 'is not known')}."


def build(stages: Stages, options: ServerOptions, warm_up: WarmUp | None = None) -> Server:
    """The ASGI app: the stream at ``/twilio``, its TwiML at ``/twilio/voice``."""
    agent = Agent(
        "You answer the telephone of a bicycle shop, briefly. Callers say or key in the number of their order.",
        stages,
        [order_status],
        greeting="Hello. Please say your order number, or key it in and press hash.",
    )
    return app(agent, options=options, warm_up=warm_up)


if __name__ == "__main__":
    options = ServerOptions(
        public_url=os.environ.get("PUBLIC_URL"),
        twilio_auth_token=os.environ.get("TWILIO_AUTH_TOKEN"),
        page=False,
    )
    sockets = listen("127.0.0.1", int(os.environ.get("PORT", "8080")))
    server = build(presets.local(), options, presets.warm_up)
    asyncio.run(serve(server, sockets, on_ready=lambda: print("Waiting for calls.")))
