"""`keel explain`: which words made a prediction.

`word_attributions` is where to start. It needs the score of a prediction when words are hidden (`prediction_scores`),
and for that the place of each word in the input of a task (`prediction_layouts`).
"""
