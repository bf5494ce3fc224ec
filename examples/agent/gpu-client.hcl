# SPDX-License-Identifier: MPL-2.0
#
# Added to the configuration of a Nomad client with GPUs.

plugin_dir = "/opt/nomad/plugins"

client {
  enabled   = true
  node_pool = "gpu"

  # Long enough for a checkpoint when Nomad stops a task.
  max_kill_timeout = "10m"

  # What the node is bought as, for jobs that may not run on spot nodes.
  meta {
    "gpu.lifecycle" = "on-demand"
  }
}

plugin "nomad-device-gpu" {
  config {
    # Without GPUs, to try things out: profile = "dgx-h100"
    fingerprint_period = "1m"
  }
}

plugin "nomad-driver-nccl" {
  config {
    consul {
      address = "127.0.0.1:8500"
      # token_file = "/etc/nomad.d/consul.token"
    }
    network {
      # The interface of the training network; leave it out to use Nomad's.
      # interface = "eth1"
    }
  }
}
