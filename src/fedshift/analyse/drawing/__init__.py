"""Matplotlib drawings that the kinds of analyses share; ``analyse.pictures`` imports them."""

from fedshift.analyse.drawing.charts import Chart as Chart
from fedshift.analyse.drawing.charts import Line as Line
from fedshift.analyse.drawing.charts import bars as bars
from fedshift.analyse.drawing.charts import error_bars as error_bars
from fedshift.analyse.drawing.charts import lines as lines
from fedshift.analyse.drawing.charts import look as look
from fedshift.analyse.drawing.charts import radar as radar
from fedshift.analyse.drawing.charts import reliability as reliability
from fedshift.analyse.drawing.fields import Cloud as Cloud
from fedshift.analyse.drawing.fields import Picture as Picture
from fedshift.analyse.drawing.fields import clouds as clouds
from fedshift.analyse.drawing.fields import clouds_and_bars as clouds_and_bars
from fedshift.analyse.drawing.fields import critical_difference as critical_difference
from fedshift.analyse.drawing.fields import images as images
from fedshift.analyse.drawing.fields import matrices as matrices
