"""A sentence model of ONNX in a confined process: it reads numbers of word pieces and returns vectors."""
