# SPDX-License-Identifier: MPL-2.0
#
# The Nomad Autoscaler with the plugins of nomad-autoscaler-gpu.

plugin_dir = "/opt/nomad-autoscaler/plugins"

nomad {
  address = "http://127.0.0.1:4646"
}

policy {
  dir = "/etc/nomad-autoscaler/policies"
}

apm "gpu-queue" {
  driver = "nomad-autoscaler-gpu"
  args   = ["apm"]
  config = {
    pools_file    = "/etc/nomad-autoscaler/pools.hcl"
    nomad_address = "http://127.0.0.1:4646"
  }
}

strategy "gpu-pool" {
  driver = "nomad-autoscaler-gpu"
  args   = ["strategy"]
  config = {
    pools_file    = "/etc/nomad-autoscaler/pools.hcl"
    nomad_address = "http://127.0.0.1:4646"
  }
}

# Only for pools of kind "local"; those of kind "target" name another one.
target "gpu-pool" {
  driver = "nomad-autoscaler-gpu"
  args   = ["target"]
  config = {
    pools_file    = "/etc/nomad-autoscaler/pools.hcl"
    nomad_address = "http://127.0.0.1:4646"
  }
}

target "aws-asg" {
  driver = "aws-asg"
  config = {
    aws_region = "us-east-1"
  }
}
