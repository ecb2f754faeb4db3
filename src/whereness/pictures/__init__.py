"""Pictures of encodings, one kind a door, as SVG text for docs, reports and pages.

    codes        doors 1 and 2   the code of every position
    rotation     door 3          how far each pair of channels has turned
    scores       door 4          the bias of every head, or scores of one word
    values       door 5          what is added to what is read
    offsets      any             scores of identical tokens against their distance
    spectrum     any             the frequencies that it is made of

Each module has `numbers(subject)`, what the library itself gives, and `picture(subject, name)`.
Needs matplotlib, of the extra `lab`.
"""

from whereness.pictures.drawing import Picture as Picture
from whereness.pictures.making import pictures as pictures
from whereness.pictures.subject import Subject as Subject
from whereness.pictures.subject import subject as subject
