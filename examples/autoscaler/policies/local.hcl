# SPDX-License-Identifier: MPL-2.0
#
# Nomad clients on this machine, by the target here.

scaling "workstation" {
  enabled = true
  min     = 0
  max     = 1

  policy {
    cooldown            = "1m"
    evaluation_interval = "15s"

    check "queue" {
      source = "gpu-queue"
      query  = "needed_nodes{pool=\"workstation\"}"

      strategy "gpu-pool" {
        pool = "workstation"
      }
    }

    target "gpu-pool" {
      pool = "workstation"
    }
  }
}
