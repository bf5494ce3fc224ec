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

# For pools of all kinds but "target": those name one of the targets below.
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

target "azure-vmss" {
  driver = "azure-vmss"
  config = {
    subscription_id = "00000000-0000-0000-0000-000000000000"
  }
}

target "gce-mig" {
  driver = "gce-mig"
  config = {
    credentials = "/etc/nomad-autoscaler/google.json"
  }
}
