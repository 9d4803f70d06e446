"""The record of a run as one HTML page: `figures` reads, `words` says it, `charts` draws, `page` lays out.

The page is one file that loads nothing: its charts, by plotly.js, are in it.
"""

from msdata_jax.observing.report.figures import RunFigures as RunFigures
from msdata_jax.observing.report.figures import read_figures as read_figures
from msdata_jax.observing.report.page import make_page as make_page
from msdata_jax.observing.report.words import summarise as summarise
