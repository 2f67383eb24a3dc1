"""The daemon of GPU machines: are they what their pools say?"""
