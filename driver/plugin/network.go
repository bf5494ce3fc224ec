// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/hashicorp/nomad/nomad/structs"
)

// ports takes the gang's two ports from what Nomad reserved for the group.
func ports(all *structs.AllocatedPorts, labels []string) ([2]int, netip.Addr, error) {
	var numbers [2]int
	var host netip.Addr
	for i, label := range labels {
		var p structs.AllocatedPortMapping
		ok := false
		if all != nil {
			p, ok = all.Get(label)
		}
		if !ok {
			return numbers, host, fmt.Errorf("gang.ports: the group reserves no port %q; add `port %q {}` to the group's network block", label, label)
		}
		if p.To > 0 && p.To != p.Value {
			return numbers, host, fmt.Errorf("gang.ports: port %q is mapped from %d to %d; a gang's ports must not be mapped, leave `to` out", label, p.Value, p.To)
		}
		numbers[i] = p.Value
		if address, err := netip.ParseAddr(p.HostIP); err == nil && !host.IsValid() {
			host = address
		}
	}
	return numbers, host, nil
}

// trainingAddress is this node's address on the training network: the one
// configured, else the first of the interface or in the prefix, else that of
// Nomad's reserved ports.
func (s settings) trainingAddress(reserved netip.Addr) (netip.Addr, error) {
	if s.address.IsValid() {
		return s.address, nil
	}
	if s.iface == "" && !s.cidr.IsValid() {
		if !reserved.IsValid() {
			return reserved, fmt.Errorf("network: Nomad names no address for the reserved ports; set network.interface, network.cidr or network.address in the driver's configuration")
		}
		return reserved, nil
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("network: %w", err)
	}
	for _, i := range interfaces {
		if s.iface != "" && i.Name != s.iface {
			continue
		}
		for _, a := range addresses(i) {
			if !a.IsLinkLocalUnicast() && (!s.cidr.IsValid() || s.cidr.Contains(a)) {
				return a, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("network: no address found; interface %q, cidr %q are configured", s.iface, s.cidr)
}

// interfaceOf is the name of the interface that owns an address; empty: none
// does. All of 127.0.0.0/8 belongs to the loopback interface.
func interfaceOf(address netip.Addr) string {
	interfaces, err := net.Interfaces()
	if err != nil {
		return ""
	}
	for _, i := range interfaces {
		if address.IsLoopback() && i.Flags&net.FlagLoopback != 0 {
			return i.Name
		}
		for _, a := range addresses(i) {
			if a == address {
				return i.Name
			}
		}
	}
	return ""
}

// addresses are an interface's, IPv4 first.
func addresses(i net.Interface) []netip.Addr {
	all, err := i.Addrs()
	if err != nil {
		return nil
	}
	var four, six []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				if ip = ip.Unmap(); ip.Is4() {
					four = append(four, ip)
				} else {
					six = append(six, ip)
				}
			}
		}
	}
	return append(four, six...)
}
