"""Names that a method, or a verifier, of one's own is made of; CONTRIBUTING.md has a recipe for each."""

from cosd_api.decoding.commands import Contender, DecidedSegment
from cosd_api.decoding.passage import Passage
from cosd_api.decoding.writer import AnswerWriter
from cosd_api.methods.base import DraftFirst, Method, Written
from cosd_api.methods.cost import FINER, Assumptions, Bounds, Cost, Plan, Reading
from cosd_api.verification import Needs, Place, Verifier

__all__ = [
    "FINER",
    "AnswerWriter",
    "Assumptions",
    "Bounds",
    "Contender",
    "Cost",
    "DecidedSegment",
    "DraftFirst",
    "Method",
    "Needs",
    "Passage",
    "Place",
    "Plan",
    "Reading",
    "Verifier",
    "Written",
]
