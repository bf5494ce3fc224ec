# SPDX-License-Identifier: MPL-2.0
#
# An EC2 Fleet, by the target here.

scaling "a100-fleet" {
  enabled = true
  min     = 0
  max     = 8

  policy {
    cooldown            = "1m"
    evaluation_interval = "15s"

    check "queue" {
      source = "gpu-queue"
      query  = "needed_nodes{pool=\"a100-fleet\"}"

      strategy "gpu-pool" {
        pool = "a100-fleet"
      }
    }

    target "gpu-pool" {
      pool = "a100-fleet"
    }
  }
}
