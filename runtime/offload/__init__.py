"""KV below the device: host memory and disk, and the copies between."""
