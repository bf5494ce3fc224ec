module github.com/nomad-gpu/nomad-gpu/e2e/bench

go 1.26.7

replace github.com/nomad-gpu/nomad-gpu => ../..

require (
	github.com/NVIDIA/go-gpuallocator v0.6.0
	github.com/nomad-gpu/nomad-gpu v0.0.0-00010101000000-000000000000
)

require (
	github.com/NVIDIA/go-nvlib v0.13.0 // indirect
	github.com/NVIDIA/go-nvml v0.13.4-1 // indirect
	github.com/goccy/go-yaml v1.19.2 // indirect
	github.com/google/uuid v1.6.0 // indirect
)
