// Kubernetes' own allocator of devices, for tests: a world a line on stdin, what it allocates a line on stdout.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

type world struct {
	Node      core.Node
	Slices    []*resource.ResourceSlice
	Classes   []*resource.DeviceClass
	Allocated []*resource.ResourceClaim
	Claims    []*resource.ResourceClaim
}

type answer struct {
	Results []resource.AllocationResult `json:"results"`
	Error   string                      `json:"error,omitempty"`
}

// What Kubernetes 1.36 has on by default.
var features = structured.Features{
	AdminAccess:            true,
	ConsumableCapacity:     true,
	DeviceBindingAndStatus: true,
	DeviceTaints:           true,
	PartitionableDevices:   true,
	PrioritizedList:        true,
}

type classes []*resource.DeviceClass

func (c classes) List() ([]*resource.DeviceClass, error) { return c, nil }

func (c classes) Get(name string) (*resource.DeviceClass, error) {
	for _, class := range c {
		if class.Name == name {
			return class, nil
		}
	}
	return nil, fmt.Errorf("no class %s", name)
}

// As kube-scheduler's plugin collects it, foreachAllocatedDevice.
func state(claims []*resource.ResourceClaim) structured.AllocatedState {
	found := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			device := structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
			switch {
			case result.AdminAccess != nil && *result.AdminAccess:
			case result.ShareID != nil:
				found.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(device, result.ShareID))
				if result.ConsumedCapacity != nil {
					found.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(device, result.ConsumedCapacity))
				}
			default:
				found.AllocatedDevices.Insert(device)
			}
		}
	}
	return found
}

func main() {
	cache := cel.NewCache(1000, cel.Features{EnableConsumableCapacity: true})
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var given world
		var found answer
		if err := json.Unmarshal(lines.Bytes(), &given); err != nil {
			panic(err)
		}
		ctx := context.Background()
		allocator, err := structured.NewAllocator(
			ctx, features, state(given.Allocated), classes(given.Classes), given.Slices, cache)
		if err == nil {
			found.Results, err = allocator.Allocate(ctx, &given.Node, given.Claims)
		}
		if err != nil {
			found.Error = err.Error()
		}
		if err := out.Encode(found); err != nil {
			panic(err)
		}
	}
}
