"""Request fields that the gateway can be set to ignore: sampling parameters, and hints to a server.

The list of these fields is fixed. If one of them is ignored, the fusion writes its usual answer, in the format that the
client expects. Other fields cannot be ignored: a client that sends `n`, `stop`, `tools` or `response_format`, for
example, would not get the answer that it requested. Names are checked, because a misspelt name would match no field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cosd_api import SettingError
from cosd_api.extend import suggestion

__all__ = ["IGNORABLE", "changes_nothing", "check_ignored"]

IGNORABLE: Mapping[str, Collection[object]] = {
    "temperature": (),  # `Asked.ignored` compares it with the temperature of the fusion's method
    "top_p": (1,),
    "top_k": (0, -1),
    "min_p": (0,),
    "top_a": (0,),
    "typical_p": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "repeat_penalty": (1,),
    "repeat_last_n": (),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "do_sample": (False,),
    "mirostat": (0,),
    "mirostat_tau": (),
    "mirostat_eta": (),
    "dynatemp_range": (0,),
    "dynatemp_exponent": (),
    "dry_multiplier": (0,),
    "dry_base": (),
    "dry_allowed_length": (),
    "xtc_probability": (0,),
    "xtc_threshold": (),
    "reasoning": (),
    "reasoning_effort": (),
    "thinking": (),
    "enable_thinking": (),
    "chat_template_kwargs": (),
    "verbosity": (),
    "prediction": (),
    "cache_prompt": (),
    "id_slot": (-1,),
    "priority": (),
    "keep_alive": (),
    "chat_id": (),
    "session_id": (),
}
"""Names of the fields that can be ignored, each with the values that have no effect on an answer."""


def changes_nothing(name: str, value: object) -> bool:
    """Test whether a field of `IGNORABLE` has a value that has no effect; null counts as absent."""
    return value is None or value in IGNORABLE[name]


def check_ignored(names: Collection[str]) -> frozenset[str]:
    """Check the names of fields to ignore.

    Raises:
        SettingError: a name is not in `IGNORABLE`.
    """
    for name in names:
        if name not in IGNORABLE:
            words = suggestion(name, IGNORABLE, f"these can: {', '.join(IGNORABLE)}")
            raise SettingError(f"{name!r} cannot be ignored, only fields that leave the form of an answer alone{words}")
    return frozenset(names)
