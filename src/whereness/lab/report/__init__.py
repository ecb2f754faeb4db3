"""The report of a comparison: one HTML file that needs nothing else, online or not.

    writing     the file
    view        what the template shows, from the summary
    judged      the table of properties
    chart       the curves: data for the page's script, and a still picture without it
    telling     the story in short, in numbers of now

The template, its style and its script lie beside this file.
"""

from whereness.lab.report.writing import write as write
