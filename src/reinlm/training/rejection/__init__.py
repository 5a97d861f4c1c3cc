"""Rejection sampling: sample answers, keep good ones, imitate them; what `reinlm rft` runs."""
