"""SQuAD 1.1 and 2.0: JSON to windows of tokens, logits to answers, answers to scores.

`reading` makes examples of a file, `windows` cuts them into pieces that a model can take,
`answers` turns the model's logits into predictions, `prediction_files` writes and `evaluation`
scores these.
"""
