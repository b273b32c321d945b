"""Results as typed records. One declaration per kind reads, checks, writes and documents them. Needs no torch."""

from backstory.results.common import AuditRecord, Figures, ProvenanceRecord, UnknownTokens
from backstory.results.evaluation_record import EvaluationFigures, SampleFigures
from backstory.results.examination_record import ExaminationFigures, TruncationFigures
from backstory.results.explanation_record import ComparisonFigures, ExplanationFigures
from backstory.results.passage import Candidates, Layer, Numbers, Passage, Weights, Word
from backstory.results.referee_record import RefereeFigures
from backstory.results.reproduction_record import ReproductionFigures
from backstory.results.result_file import KINDS, OtherFigures, Result, result_at, result_from, result_or_none
from backstory.results.run_results import RunResults, read, read_log
from backstory.results.search_record import SearchFigures
from backstory.results.training_record import TrainingFigures
from backstory.results.validation import Record

__all__ = [
    "KINDS",
    "AuditRecord",
    "Candidates",
    "ComparisonFigures",
    "EvaluationFigures",
    "ExaminationFigures",
    "ExplanationFigures",
    "Figures",
    "Layer",
    "Numbers",
    "OtherFigures",
    "Passage",
    "ProvenanceRecord",
    "Record",
    "RefereeFigures",
    "ReproductionFigures",
    "Result",
    "RunResults",
    "SampleFigures",
    "SearchFigures",
    "TrainingFigures",
    "TruncationFigures",
    "UnknownTokens",
    "Weights",
    "Word",
    "read",
    "read_log",
    "result_at",
    "result_from",
    "result_or_none",
]
