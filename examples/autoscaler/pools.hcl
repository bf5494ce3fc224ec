# SPDX-License-Identifier: MPL-2.0
#
# The pools that nomad-autoscaler-gpu plans for.

# Spot nodes in a cloud group: the autoscaler's built-in aws-asg makes them.
pool "h100-spot" {
  kind      = "target"
  lifecycle = "spot"
  price     = 40
  min       = 0
  max       = 16
  idle_time = "10m"

  select {
    node_pool  = "gpu"
    node_class = "h100-spot"
  }

  shape {
    gpus  = 8
    model = "NVIDIA H100 80GB HBM3"
  }
}

# Two nodes that are always there.
pool "h100-on-demand" {
  kind      = "target"
  lifecycle = "on-demand"
  price     = 98
  min       = 2
  max       = 4

  select {
    node_pool  = "gpu"
    node_class = "h100-on-demand"
  }

  shape {
    gpus  = 8
    model = "NVIDIA H100 80GB HBM3"
  }
}
