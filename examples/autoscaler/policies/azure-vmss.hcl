# SPDX-License-Identifier: MPL-2.0
#
# A virtual machine scale set, by the autoscaler's built-in target.

scaling "azure-h100" {
  enabled = true
  min     = 0
  max     = 8

  policy {
    cooldown            = "1m"
    evaluation_interval = "15s"

    check "queue" {
      source = "gpu-queue"
      query  = "needed_nodes{pool=\"azure-h100\"}"

      strategy "gpu-pool" {
        pool = "azure-h100"
      }
    }

    target "azure-vmss" {
      resource_group         = "gpu"
      vm_scale_set           = "azure-h100"
      node_class             = "azure-h100"
      node_drain_deadline    = "15m"
      node_selector_strategy = "empty_ignore_system"
      node_purge             = "true"
    }
  }
}
