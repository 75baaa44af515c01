"""Trained models as SavedModels: texts or ids in; labels, tags or answers out (docs/export.md)."""
