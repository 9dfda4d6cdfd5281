"""Align and voxelize from Python: arrays of any framework in, one native call, arrays of the same framework out."""
