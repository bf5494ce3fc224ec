# SPDX-License-Identifier: MPL-2.0
#
# An Auto Scaling group, by the autoscaler's built-in target.

scaling "h100-spot" {
  enabled = true
  min     = 0
  max     = 16

  policy {
    cooldown            = "1m"
    evaluation_interval = "15s"

    check "queue" {
      source = "gpu-queue"
      query  = "needed_nodes{pool=\"h100-spot\"}"

      strategy "gpu-pool" {
        pool = "h100-spot"
      }
    }

    target "aws-asg" {
      aws_asg_name           = "h100-spot"
      node_class             = "h100-spot"
      node_drain_deadline    = "15m"
      node_selector_strategy = "empty_ignore_system"
      node_purge             = "true"
    }
  }
}
