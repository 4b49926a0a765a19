"""Your own agent as the model: any async generator ``(chat, scope) → text``. Talk to it:

``voice talk --agent examples/own_agent.py:agent --ask "How long is this sentence?"``
"""

from collections.abc import AsyncIterator

from stages import presets
from voice import Agent, Scope
from voice.agent import ChatView


async def count_words(chat: ChatView, scope: Scope) -> AsyncIterator[str]:
    """Stands for an agent you already have: read the conversation, yield text as it comes.

    ``chat.messages`` is the whole conversation as it was heard. When the caller interrupts, this generator is
    closed; ``scope.remaining()`` says how much time it has.
    """
    words = chat.last_user_text.split()
    yield f"You said {len(words)} words. "
    yield f"The last one was {words[-1].strip('?.!')}." if words else "You said nothing."


agent = Agent("", presets.local(), model=count_words)
