# SPDX-License-Identifier: MPL-2.0
#
# A managed instance group, by the autoscaler's built-in target.

scaling "gce-h100" {
  enabled = true
  min     = 0
  max     = 8

  policy {
    cooldown            = "1m"
    evaluation_interval = "15s"

    check "queue" {
      source = "gpu-queue"
      query  = "needed_nodes{pool=\"gce-h100\"}"

      strategy "gpu-pool" {
        pool = "gce-h100"
      }
    }

    target "gce-mig" {
      project                = "my-project"
      zone                   = "us-central1-a"
      mig_name               = "gce-h100"
      node_class             = "gce-h100"
      node_drain_deadline    = "15m"
      node_selector_strategy = "empty_ignore_system"
      node_purge             = "true"
    }
  }
}
