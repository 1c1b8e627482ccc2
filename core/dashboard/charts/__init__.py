"""Every chart of the dashboard. Plotly is imported in this package alone."""

from core.dashboard.charts.calibration import calibration_error_curve, reliability_diagram, reliability_of
from core.dashboard.charts.comparison import Along, Overlaid, overlaid_losses
from core.dashboard.charts.component import WHOLE, Part, chart, install_scripts, show
from core.dashboard.charts.curves import Axis, Curves
from core.dashboard.charts.datasets import class_distribution, length_histogram
from core.dashboard.charts.evaluation import confusion_matrix
from core.dashboard.charts.one_step import gradient_norms, timeline
from core.dashboard.charts.scaling import efficiency_curve, speed_up_curve, step_bars
from core.dashboard.charts.series import Series
from core.dashboard.charts.system import Quantity, system_curve
from core.dashboard.charts.training import accuracy_curve, gap_curve, generalization_loss_curve, loss_curve

__all__ = [
    "WHOLE",
    "Along",
    "Axis",
    "Curves",
    "Overlaid",
    "Part",
    "Quantity",
    "Series",
    "accuracy_curve",
    "calibration_error_curve",
    "chart",
    "class_distribution",
    "confusion_matrix",
    "efficiency_curve",
    "gap_curve",
    "generalization_loss_curve",
    "gradient_norms",
    "install_scripts",
    "length_histogram",
    "loss_curve",
    "overlaid_losses",
    "reliability_diagram",
    "reliability_of",
    "show",
    "speed_up_curve",
    "step_bars",
    "system_curve",
    "timeline",
]
