"""The public names, read by editors and type checkers; at run time `__init__.py` imports a name on first use.

The verbs, their settings and predictions are the `__all__` of their modules; the systems are those of keel.systems.
"""
# ruff: noqa: F403

from keel.api.bias import *
from keel.api.comparison import *
from keel.api.conversion import *
from keel.api.evaluation import *
from keel.api.figures import *
from keel.api.finetuning import *
from keel.api.glue_benchmark import *
from keel.api.inference import *
from keel.api.inspection import *
from keel.api.layers import *
from keel.api.maps import *
from keel.api.pretraining import *
from keel.api.prompting import *
from keel.api.settings import *
from keel.api.sklearn_classifier import *
from keel.api.tensor_tracing import *
from keel.api.text_generation import *
from keel.api.training_runs import *
from keel.api.translation import *
from keel.api.vectors import *
from keel.checks import *
from keel.data.corpus import Corpus as Corpus
from keel.data.examples import Columns as Columns
from keel.data.predictions import *
from keel.data.token_store import Tokens as Tokens
from keel.data.tokenizer import Tokenizer as Tokenizer
from keel.errors import Interrupted as Interrupted
from keel.errors import KeelError as KeelError
from keel.errors import UsageError as UsageError
from keel.explain.attention_weights import Attention as Attention
from keel.explain.attributions.word_attributions import Explanation as Explanation
from keel.explain.bias.bias_report import BiasReport as BiasReport
from keel.explain.layers.layer_weights import Layers as Layers
from keel.explain.layers.layer_weights import LayersByTask as LayersByTask
from keel.explain.layers.probe_curves import LayerProbes as LayerProbes
from keel.explain.nearest_neighbors import Neighbor as Neighbor
from keel.explain.perplexity import Perplexity as Perplexity
from keel.explain.sentence_retrieval import Retrieval as Retrieval
from keel.explain.text_clusters import Clusters as Clusters
from keel.explain.trace.tensor_trace import TensorTrace as TensorTrace
from keel.explain.word_senses import Senses as Senses
from keel.formats.stored_model import Vectors as Vectors
from keel.generation.beam_search import BeamSearch as BeamSearch
from keel.generation.sampling import Sampling as Sampling
from keel.metrics.bootstrap import Score as Score
from keel.metrics.comparison_results import Comparison as Comparison
from keel.metrics.scores import PredictionError as PredictionError
from keel.metrics.scores import Scores as Scores
from keel.metrics.significance import PairwiseTest as PairwiseTest
from keel.model import Candidate as Candidate
from keel.model import Model as Model
from keel.model_card import Card as Card
from keel.report.figures.figure import Figure as Figure
from keel.systems import *
from keel.tasks.head_settings import HeadSettings as HeadSettings
from keel.text_vectors import TokenVectors as TokenVectors
from keel.training.plan import Train as Train

__version__: str
