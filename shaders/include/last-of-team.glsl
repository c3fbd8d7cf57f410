// How workgroups that work for one result, a team, find out which of them is the last to finish.
// The including shader has
//     arrived  a coherent buffer with a counter for each team, zero before the dispatch; it is zero again after it
//     is_last  a shared uint
//     REACH    scope of writes that other workgroups see: gl_ScopeDevice, or gl_ScopeQueueFamily in Vulkan's memory model

// Whether the other splits of the team, the work of its other workgroups, can be read. Called by all invocations.
bool last_of_team(uint team, uint splits) {
    controlBarrier(gl_ScopeWorkgroup, REACH, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
    if (gl_LocalInvocationIndex == 0u) {
        uint before = atomicAdd(arrived[team], 1u, REACH, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
        is_last = before + 1u == splits ? 1u : 0u;
        if (is_last == 1u) arrived[team] = 0u;
    }
    controlBarrier(gl_ScopeWorkgroup, REACH, gl_StorageSemanticsBuffer | gl_StorageSemanticsShared,
                   gl_SemanticsAcquireRelease);
    return is_last == 1u;
}
