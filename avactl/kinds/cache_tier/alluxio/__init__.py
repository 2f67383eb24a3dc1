"""Engine `alluxio`: the objects of an Alluxio 2.9 cluster."""
