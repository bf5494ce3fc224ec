# SPDX-License-Identifier: MPL-2.0
#
# Machines that a program of yours makes, by the target here.

scaling "rack" {
  enabled = true
  min     = 0
  max     = 4

  policy {
    cooldown            = "1m"
    evaluation_interval = "15s"

    check "queue" {
      source = "gpu-queue"
      query  = "needed_nodes{pool=\"rack\"}"

      strategy "gpu-pool" {
        pool = "rack"
      }
    }

    target "gpu-pool" {
      pool = "rack"
    }
  }
}
