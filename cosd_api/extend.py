"""Building blocks of new methods and verifiers, and the records of the requests that they make.

To define a new way to fuse, derive from `Program` and write `async def write(answer, *models)`; the tutorial is
`examples/methods/README.md`. Names in this module may change in any release before 1.0; the changelog lists the
changes.
"""

from __future__ import annotations

from cosd_api.alignment import Unit
from cosd_api.budget import SharedLimit
from cosd_api.checks import between, check_count, check_positive
from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.model import Lost, Model, Stream
from cosd_api.decoding.passage import Passage, joined
from cosd_api.decoding.program import Answer, OpenSegment
from cosd_api.decoding.route import Routes
from cosd_api.decoding.timeline import RequestKind
from cosd_api.decoding.word_ends import common_ends, ends_of_words
from cosd_api.endpoints import Endpoints, Facts
from cosd_api.methods.base import Method, Program
from cosd_api.methods.cool import LONGEST, most_segments
from cosd_api.methods.cost import FINER, HIGHEST_SCORED, SCORED, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.methods.needs import Models, RoleNeeds
from cosd_api.methods.perplexity import ByPerplexity, ProposedText, ProposedTexts, choose_text
from cosd_api.methods.prompt_weights import prompt_nlls, prompt_weights
from cosd_api.methods.weighted import Weighted
from cosd_api.records import DRAFT, Probability, Record, Seconds
from cosd_api.verification import Needs, Place, Verifier
from cosd_providers.text import readable

__all__ = [  # noqa: RUF022 - by subject
    # Programs: what a method derives from, and what it is given.
    "Answer",
    "Contender",
    "DecidedSegment",
    "Lost",
    "Method",
    "Model",
    "Models",
    "OpenSegment",
    "Passage",
    "Program",
    "RoleNeeds",
    "Stream",
    "Unit",
    "joined",
    # Settings of methods: bounds for `Annotated`, and checks.
    "between",
    "check_count",
    "check_positive",
    # Costs, which a method may state before it runs.
    "FINER",
    "HIGHEST_SCORED",
    "LONGEST",
    "SCORED",
    "Assumptions",
    "Bounds",
    "Cost",
    "Plan",
    "Reading",
    "most_segments",
    # Parts that several methods share.
    "ByPerplexity",
    "ProposedText",
    "ProposedTexts",
    "Weighted",
    "choose_text",
    "common_ends",
    "ends_of_words",
    "prompt_nlls",
    "prompt_weights",
    "readable",
    # Verifiers.
    "Needs",
    "Place",
    "Verifier",
    # Records, and the models of a fusion.
    "DRAFT",
    "Endpoints",
    "Facts",
    "Probability",
    "Record",
    "RequestKind",
    "Routes",
    "Seconds",
    "SharedLimit",
]
