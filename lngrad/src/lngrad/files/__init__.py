"""Arrays on disk: .npz, folders of .npy and .safetensors, read by mapping and written whole or not at all."""
